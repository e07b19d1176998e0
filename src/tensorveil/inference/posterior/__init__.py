"""The Bayesian completion: a chain of Gibbs draws that knows the law of the noise."""
