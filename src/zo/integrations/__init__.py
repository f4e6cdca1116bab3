"""The methods inside other libraries' trainers, one module per library, which it imports.

May import every other room of `zo`; no room imports this one.
"""
