"""Doctor says what is wrong and what to do about it. Looking changes nothing."""
