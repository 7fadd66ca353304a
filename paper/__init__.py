"""The evidence for the paper: plans, records, tables, and the command that checks them (`make paper`)."""
