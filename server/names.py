"""Names of files in a server's data folder that commands beside it know too."""

ADMIN_TOKEN = "admin-token"  # noqa: S105 -- a file's name
