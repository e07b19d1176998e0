"""Advice before anything is spent: how accurate a release will be, judged on made-up tensors."""
