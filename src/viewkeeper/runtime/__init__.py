"""5. Execution of a batch's operators in rounds: in the driver as a loop, or on Spark as one job with shuffles."""
