"""Golden tests ask: can tomorrow read yesterday?"""
