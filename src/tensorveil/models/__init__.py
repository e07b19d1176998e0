"""Factor models: CP and Tucker, and the tensor algebra around them."""
