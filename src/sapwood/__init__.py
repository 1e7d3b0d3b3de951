"""Record GPU work once; replay it at driver speed."""
