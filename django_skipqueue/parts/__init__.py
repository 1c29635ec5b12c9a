"""The optional features, each in a folder of its own. The core imports none of them."""
