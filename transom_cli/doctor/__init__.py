"""`transom doctor`: whether transom can do its work from here, and what is in its way. It changes nothing."""
