"""GPU tests ask: does a real card agree?"""
