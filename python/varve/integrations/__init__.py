"""Adapters that let training frameworks save and load their checkpoints with Varve, a module each."""
