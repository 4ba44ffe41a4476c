"""The values that cross package and process boundaries. No behaviour, no I/O.

Most of them are sent over the worker's pipe without conversion. They are msgspec structs, not dataclasses, because
msgspec encodes only structs as tagged unions. The field names are the names on that pipe. JSON documents whose form
the client decides (tool parameters, schemas, arguments) are sent as JSON text.
"""

from msgspec.structs import replace as replace  # returns a copy of a value with some fields changed

from edgeagent.types.choices import SettingChoice as SettingChoice
from edgeagent.types.deltas import *
from edgeagent.types.models import *
from edgeagent.types.requests import *
from edgeagent.types.routing import *
