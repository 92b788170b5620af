"""Varve inside training frameworks: one module for each."""
