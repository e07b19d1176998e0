"""Where privacy noise is drawn, and the tables of channels."""
