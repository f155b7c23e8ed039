"""Many runs: which are tried, what was found, and how it is made smaller and told."""
