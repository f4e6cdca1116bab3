"""Weights that lie outside of the device that computes with them: in the host's memory, or in files.

`begin` takes a model's weights off the device, `stored` holds them there, and `visits` brings those of a module to the
device for its call.
"""
