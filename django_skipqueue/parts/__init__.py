"""The features: a folder each, around a core that names none of them."""
