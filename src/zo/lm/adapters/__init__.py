"""Adapters choose which parameters of a loaded model are trained."""
