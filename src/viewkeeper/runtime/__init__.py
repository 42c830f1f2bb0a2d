"""5. Rounds: the same levels run in the driver as a loop, or on Spark as one job of shuffles."""
