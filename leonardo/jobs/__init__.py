"""Jobs on a cluster: rendered, checked, submitted, followed, collected."""
