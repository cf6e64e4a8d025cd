"""Object stores behind one protocol with conditional writes: create only if absent, replace only this version."""
