"""Clients of the real server, in this process: rounds of both modes from enrolment to prediction."""

import numpy as np
import pytest
from starlette.testclient import TestClient

from edge_client.client import Client
