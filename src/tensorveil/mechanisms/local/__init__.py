"""Local privacy: the design of protocols, and the completion of answers that clients gave by one."""
