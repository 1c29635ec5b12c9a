from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = ()

    operations = (
        migrations.CreateModel(
            name="Ledger",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("entry", models.TextField()),
                ("job_id", models.BigIntegerField(null=True)),
                ("attempt", models.IntegerField(null=True)),
                ("worker", models.TextField(default="")),
                ("written_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
    )
