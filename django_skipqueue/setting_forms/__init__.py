"""The forms of settings that are neither numbers nor texts: what is wrong with a value, in sentences. Pure."""
