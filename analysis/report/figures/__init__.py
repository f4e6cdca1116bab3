"""Figures: what they show (curves, beside_paper, study, overview), and how they are drawn (drawing, paint)."""
