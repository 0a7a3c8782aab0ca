"""What differs between description and lock on one side and the live nodes and objects on the other, item by item."""
