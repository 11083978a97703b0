"""`transom doctor`: check whether transom can work from here, without changing anything."""
