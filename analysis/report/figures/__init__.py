"""Figures: what they show (curves, beside_paper, study), and how they are drawn (drawing, paint)."""
