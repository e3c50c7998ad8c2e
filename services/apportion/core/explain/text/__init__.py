"""Sentences and names for people, made from answers, refusals and events as the last step."""
