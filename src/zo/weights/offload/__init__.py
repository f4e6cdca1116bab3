"""Weights in the host's memory or in files, which are on the computing device only while their unit is called.

`setup` moves weights off the device, `backing_store` holds them, and `offloader` fetches a unit's for its call.
"""
