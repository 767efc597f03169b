"""Many runs in a row by one worker; asked for by hand, and no part of `make bench`."""
