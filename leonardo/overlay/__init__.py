"""The patch stack: what we insert into upstream's tree, kept as files, applied, refreshed, rebased and checked.

Git does the work (through GitPython): diffs are git's, merges are git's, a patch is a commit. Ours are the rules that
``check`` holds the files to, and the journal that makes an interrupted command say how to go on.
"""
