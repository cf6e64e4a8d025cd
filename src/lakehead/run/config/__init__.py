"""The configuration of `lakehead run`: what a file may say, and all that is wrong with one, told at once."""
