"""Proofs that run the whole system: `consistency` checks what readers saw against what writers wrote."""
