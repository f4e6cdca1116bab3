"""Runs -> numbers: the cells of a sweep, chosen learning rates, paper beside measured."""
