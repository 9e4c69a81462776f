"""Whether each use holds, what guards it, who repairs it, and what that means for a job."""
