"""Tiny trained pairs, target and DFlash drafter, in the released formats: what the engine's tests speculate with."""
