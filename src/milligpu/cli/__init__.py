"""The command line: arguments in, tables or JSON out. One module for each command, imported when it is used."""
