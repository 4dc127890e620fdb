"""What people see of a run: one HTML page, its plots, and a table in the terminal."""

from leonardo.evaluation.verdict import Verdict, verdict
from leonardo.report.page import render_report
from leonardo.report.summary import print_summary

__all__ = ["Verdict", "print_summary", "render_report", "verdict"]
