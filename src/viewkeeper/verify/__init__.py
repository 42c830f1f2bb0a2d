"""Checks that run the whole system: `consistency` compares the states that readers saw with what writers wrote."""
