"""Questions about least-squares rows: normal equations, and rows whose sensitivity is exact."""
