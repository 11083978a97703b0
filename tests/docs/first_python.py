"""Print the first Python snippet of a page."""

import re
import sys
from pathlib import Path

print(re.findall(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.DOTALL)[0])
