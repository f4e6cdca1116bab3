"""Figures: what they show (curves, beside_paper), and how they are drawn (drawing)."""
