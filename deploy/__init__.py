"""What an admin installs: container images and the Helm chart. Not part of the wheel."""
