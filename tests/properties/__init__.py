"""Property tests ask: is the rule right for everything?"""
