"""Object stores behind one port, whose words are preconditions: create only if absent, replace only this version."""
