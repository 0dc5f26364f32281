"""What is remembered: tables, migrations, and the store with its one write transaction."""
