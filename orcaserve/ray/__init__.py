"""What needs Ray, and the only place that imports it: workers placed on a cluster, and an application of Ray Serve."""
