"""The evidence for the paper, with plans, records, tables, and the command that checks them (`make paper`)."""
