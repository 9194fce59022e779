"""Plans whose units are divided in unlike ways, which no rank trains yet."""
